"""Small services by which jobs meet each other."""
