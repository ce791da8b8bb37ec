"""The server's part: the study, the run on its disk, the engine whose clients are sites, and sites that are added."""
