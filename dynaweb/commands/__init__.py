"""What the front (`dynaweb.api`) starts that is more than one call.

stages   every stage that can be called alone, and the audit of judges: jobs for a run folder
doctor   what this machine has, and what it lacks
"""
