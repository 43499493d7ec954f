"""A database is filled, indexed, thinned out, packed and asked."""

import sqlite3

base = sqlite3.connect("base.db")
base.execute("create table t (k integer primary key, v text, w blob)")
rows = ((i, str(i * 7919) * (i % 40), bytes(i % 3000)) for i in range(20000))
base.executemany("insert into t values (?, ?, ?)", rows)
base.execute("create index v on t (v)")
base.execute("delete from t where k % 3 = 0")
base.commit()
base.execute("vacuum")
print(base.execute("select count(*), sum(length(v)), max(v), sum(length(w)) from t").fetchall())
print(base.execute("select substr(v, 1, 2), count(*) from t group by 1 order by 1").fetchall())
print(base.execute("pragma integrity_check").fetchall())
