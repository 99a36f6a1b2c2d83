"""Tool calls in a model's text: one parser for each family of formats, all of them pure state machines."""
