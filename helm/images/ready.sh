#!/bin/bash
# Whether what listens on port $1 is ready, and if not, why: Kubernetes shows what a probe prints with the pod's events.
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
printf 'GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n' >&3
answer=$(cat <&3)
echo "${answer##*$'\n'}"
[[ $answer == "HTTP/1.1 200"* ]]
