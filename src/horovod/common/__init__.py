"""What all doors share: initialisation, process sets, collectives, objects, knobs, exceptions."""
