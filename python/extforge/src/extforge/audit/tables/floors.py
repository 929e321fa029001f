"""Which symbol versions a claim covers: manylinux tags and GCC releases."""

from __future__ import annotations

# First number of the libstdcxx package -> highest symbol versions of that GCC series' libstdc++.
GCC: dict[int, tuple[str, str]] = {
    5: ("3.4.21", "1.3.9"),
    6: ("3.4.22", "1.3.10"),
    7: ("3.4.24", "1.3.11"),
    8: ("3.4.25", "1.3.11"),
    9: ("3.4.28", "1.3.12"),
    10: ("3.4.28", "1.3.12"),
    11: ("3.4.29", "1.3.13"),
    12: ("3.4.30", "1.3.13"),
    13: ("3.4.32", "1.3.14"),
    14: ("3.4.33", "1.3.15"),
    15: ("3.4.34", "1.3.16"),
}

# manylinux glibc version -> highest GLIBCXX and CXXABI that the policy of that tag allows.
MANYLINUX: dict[str, tuple[str, str]] = {
    "2.5": ("3.4.8", "1.3.1"),
    "2.12": ("3.4.13", "1.3.3"),
    "2.17": ("3.4.19", "1.3.7"),
    "2.24": ("3.4.22", "1.3.10"),
    "2.26": ("3.4.22", "1.3.10"),
    "2.27": ("3.4.24", "1.3.11"),
    "2.28": ("3.4.24", "1.3.11"),
    "2.31": ("3.4.28", "1.3.12"),
    "2.34": ("3.4.29", "1.3.13"),
    "2.35": ("3.4.30", "1.3.13"),
    "2.36": ("3.4.30", "1.3.13"),
    "2.37": ("3.4.30", "1.3.13"),
    "2.38": ("3.4.30", "1.3.13"),
    "2.39": ("3.4.33", "1.3.15"),
    "2.40": ("3.4.33", "1.3.15"),
    "2.41": ("3.4.33", "1.3.15"),
}
LEGACY_TAGS = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}

# conda-forge supports no system below this; a package that states no __glibc claims to run there.
CONDA_GLIBC = "2.17"
GLIBC_RELEASES = tuple(f"2.{minor}" for minor in range(5, 60))


def numbers(version: str) -> tuple[int, ...]:
    """``3.4.30`` as a comparable tuple; empty for names that are no versions (``ABI_DT_RELR``)."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(p.isdigit() for p in parts) else ()
