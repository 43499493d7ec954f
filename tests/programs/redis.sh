# A server of its own, reached through a socket in this folder.
set -e
redis-server --port 0 --unixsocket "$PWD/socket" --save '' --daemonize yes --logfile log > /dev/null
until redis-cli -s socket ping > /dev/null 2>&1; do sleep 0.1; done
seq 30000 | awk '{print "SET key" $1 " value" $1 * 7 "\nLPUSH list" $1 % 100 " " $1}' | redis-cli -s socket | sha256sum
redis-cli -s socket get key777
redis-cli -s socket llen list7
redis-cli -s socket dbsize
redis-cli -s socket shutdown nosave
