"""A study as one HTML file. Jinja and matplotlib (the extra `report`) are imported here alone, when one is made."""
