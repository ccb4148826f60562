"""Turns the arrays of an atlas into tables of measures. A lens never runs a model."""
