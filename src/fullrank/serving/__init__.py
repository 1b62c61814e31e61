"""The service: trained runs behind an address, with histories, live items, versions and a page."""
