"""The kinds of error that extforge raises on purpose, and the exit code of each.

A message says what was wrong, what was seen and what would be valid. Kinds are never mixed:

======================  ====  ==========================================================
kind                    exit  raised when
======================  ====  ==========================================================
:class:`NotFoundError`     1  something asked for is missing
:class:`FailedCommand`     1  a program that had to succeed did not
:class:`BadInputError`     2  an argument or a file cannot be used
:class:`ConflictError`     3  doing it would contradict something that is already there
:class:`FailedProbe`       4  a real probe (compile, link, load) did not work
======================  ====  ==========================================================
"""

from __future__ import annotations

from typing import ClassVar


class ExtforgeError(Exception):
    """Base of all errors that are told to the user without a traceback."""

    exit_code: ClassVar[int] = 1


class NotFoundError(ExtforgeError):
    """Something asked for is missing."""

    exit_code = 1


class FailedCommand(ExtforgeError):
    """A program that had to succeed did not."""

    exit_code = 1


class BadInputError(ExtforgeError):
    """An argument or a file cannot be used."""

    exit_code = 2


class ConflictError(ExtforgeError):
    """Doing it would contradict what is already there."""

    exit_code = 3


class FailedProbe(ExtforgeError):
    """A real probe (compile, link, load) did not work."""

    exit_code = 4
