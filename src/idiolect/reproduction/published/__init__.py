"""The numbers that the four papers print, a file per table: facts, checked against the papers cell by cell."""
