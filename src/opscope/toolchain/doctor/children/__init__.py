"""Programs that doctor runs in processes of their own, because what they ask may crash or hang.

Each imports nothing of opscope and prints one JSON object per line behind a mark, as soon as it knows it, so
that what was found before an end is not lost. Their names are no names of other modules: the folder of a
program comes first where it imports from.
"""
