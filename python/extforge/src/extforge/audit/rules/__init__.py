"""The rules: one module a family, each a mapping from code to a function over package and context.

A rule neither opens files nor prints; it yields what it observed. How that counts is said in ``wording``.
"""
