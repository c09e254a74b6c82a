"""Decide who goes next: projects and their quotas, fair share over time, order, reservations, preemption."""
