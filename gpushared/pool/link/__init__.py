"""Speak the protocol between a coordinator and its nodes."""
