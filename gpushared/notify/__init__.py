"""Tell users and sites what happens: keep notifications until their receivers have them."""
