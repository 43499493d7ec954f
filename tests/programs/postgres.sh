# A server of its own in this folder: a table is filled, indexed, asked, changed and packed.
set -e
as_nobody="unshare --user --map-user=65534 --map-group=65534"
if [ "$(id -u)" = 0 ]; then # the server refuses to run as root, so root takes another name
    $as_nobody true 2> /dev/null || { echo "as root it takes user namespaces" >&2; exit 77; }
    exec $as_nobody sh "$0"
fi
initdb -D data -A trust -N > /dev/null
socket=$(mktemp -d)
cat >> data/postgresql.conf <<SETTINGS
unix_socket_directories = '$socket'
listen_addresses = ''
fsync = off
SETTINGS
trap 'pg_ctl -D data -w -m fast stop > /dev/null; rmdir $socket' EXIT
pg_ctl -D data -w -l log start > /dev/null
psql -qAt -h "$socket" -U "$(id -un)" postgres <<'SQL'
create table t as select i, md5(i::text) h, repeat('x', i % 700) r from generate_series(1, 60000) i;
create index on t (h);
select count(*), sum(length(r)), min(h) from t where h > '8';
select i % 10, count(distinct left(h, 3)), max(r) = repeat('x', 699) from t group by 1 order by 1;
update t set r = r || 'y' where i % 5 = 0;
delete from t where i % 7 = 0;
vacuum full t;
select md5(string_agg(h || length(r), ',' order by i)) from t;
SQL
