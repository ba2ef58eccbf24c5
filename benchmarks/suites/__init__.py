"""The article's four suites, and a fifth: queries beside a re-index."""
