"""Run a model on one text or for one head: dossiers, attention maps, checks of labels, effects of a change."""
