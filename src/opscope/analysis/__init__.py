"""What a Session says: attribution, busy time, totals per operator, kernel, category and step.

Every function takes a Session (or a Summary made from one) and returns data; nothing here prints or writes
files.
"""
