"""Facts that the rules compare with: which package provides which library, which release has which symbol."""
