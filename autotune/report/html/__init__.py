"""A study as one HTML file. Only this package imports Jinja and matplotlib (the extra `report`), when a report is made."""
