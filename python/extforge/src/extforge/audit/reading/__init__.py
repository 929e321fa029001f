"""Reading packages: archives, metadata, ELF files and device code. Nothing here judges."""
