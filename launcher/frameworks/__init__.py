"""Variables for processes: one file per framework, from topology to settings, without reading the node."""
