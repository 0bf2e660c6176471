"""query.py CONNINFO SQL prints the first value; a failure ends with its traceback."""

import sys

import psycopg2

connection = psycopg2.connect(sys.argv[1])
cursor = connection.cursor()
cursor.execute(sys.argv[2])
print(cursor.fetchone()[0])
