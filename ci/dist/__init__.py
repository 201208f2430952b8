"""The packages of kymo: `make dist`."""
