"""Tests of the pages in Chromium: a package, so that a browser lives as long as they run."""
