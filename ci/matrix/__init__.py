"""Every feature of kymo on the kernels of four Debian releases, in virtual machines."""
