#!/bin/sh
# nginx.sh FOLDER: serves files of 200 kB, packed anew for each of 300 requests, and ends. Port 8471 of loopback.
set -eu
cd "$1"
mkdir -p www logs
seq 1 30000 >www/index.html
cat >nginx.conf <<'CONF'
daemon off;
worker_processes 1;
error_log logs/error.log;
pid logs/nginx.pid;
events { }
http {
    access_log off;
    gzip on;
    gzip_comp_level 6;
    gzip_types text/html;
    client_body_temp_path logs; proxy_temp_path logs; fastcgi_temp_path logs; uwsgi_temp_path logs; scgi_temp_path logs;
    server { listen 127.0.0.1:8471; root www; }
}
CONF
chmod -R a+rX .
nginx -p "$PWD" -c nginx.conf &
trap 'kill $! 2>/dev/null; wait' EXIT
python3 - <<'END'
import time, urllib.request
def get():
    request = urllib.request.Request("http://127.0.0.1:8471/", headers={"Accept-Encoding": "gzip"})
    return urllib.request.urlopen(request).read()
for _ in range(100):
    try:
        get()
        break
    except OSError:
        time.sleep(0.05)
for _ in range(300):
    get()
END
