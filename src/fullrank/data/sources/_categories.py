"""The categories of each edition of the Amazon reviews, as the publisher names their files."""

from __future__ import annotations

_BOTH_OLD = (
    "Automotive Books CDs_and_Vinyl Cell_Phones_and_Accessories Clothing_Shoes_and_Jewelry Digital_Music Electronics "
    "Grocery_and_Gourmet_Food Home_and_Kitchen Kindle_Store Movies_and_TV Musical_Instruments Office_Products "
    "Patio_Lawn_and_Garden Pet_Supplies Sports_and_Outdoors Tools_and_Home_Improvement Toys_and_Games Video_Games"
)
CATEGORIES: dict[int, tuple[str, ...]] = {
    2014: tuple(f"{_BOTH_OLD} Amazon_Instant_Video Apps_for_Android Baby Beauty Health_and_Personal_Care".split()),
    2018: tuple(
        f"{_BOTH_OLD} AMAZON_FASHION All_Beauty Appliances Arts_Crafts_and_Sewing Gift_Cards "
        "Industrial_and_Scientific Luxury_Beauty Magazine_Subscriptions Prime_Pantry Software".split()
    ),
    2023: tuple(
        f"{_BOTH_OLD} All_Beauty Amazon_Fashion Appliances Arts_Crafts_and_Sewing Baby_Products "
        "Beauty_and_Personal_Care Gift_Cards Handmade_Products Health_and_Household Health_and_Personal_Care "
        "Industrial_and_Scientific Magazine_Subscriptions Software Subscription_Boxes Unknown".split()
    ),
}
"""Edition to category names: 24 in 2014, 29 in 2018, 34 in 2023."""
