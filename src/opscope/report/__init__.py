"""Reports: a Summary composed into a Document, and both rendered as text, Markdown or JSON.

Composing decides what is said, rendering how it looks; any renderer runs on any Session, whenever it was
recorded. Only functions named `write_*` touch files, and nothing here prints. Imports neither torch nor
capture, bench or cli.
"""
