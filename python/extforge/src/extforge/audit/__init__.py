"""Auditing built packages: is what they claim what they hold?"""

from extforge.audit.auditing import Options, audit_packages
from extforge.audit.model import Finding, Level, Report

__all__ = ["Finding", "Level", "Options", "Report", "audit_packages"]
