"""The pieces of `device.py`: what is run on a device, one step after the other, and what each leaves."""
