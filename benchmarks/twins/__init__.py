"""What the library is compared with: the obvious way to write the same thing, and the least that it must compute."""
