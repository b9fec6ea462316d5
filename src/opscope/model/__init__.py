"""The data model: declared tables, the Session that holds them, findings and environments.

Imports nothing above it: reading, recording, analysis and rendering all meet here.
"""
