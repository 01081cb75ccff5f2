"""Storage: claims, volumes, classes, CSI drivers and what they say of nodes."""
