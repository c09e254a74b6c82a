"""Place requests on many hosts: which hosts fit, which is best, and how to take a decision back."""
