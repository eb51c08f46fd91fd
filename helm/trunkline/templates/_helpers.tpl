{{/* Names and blocks that several templates share. */}}

{{- define "trunkline.name" -}}
{{- printf "%s" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "trunkline.labels" -}}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* (list $ "router") -> the labels by which a component is found. */}}
{{- define "trunkline.selector" -}}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* (list $ "trunkline-router") -> image */}}
{{- define "trunkline.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.registry }}{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{/* Pools with their defaults, as JSON. */}}
{{- define "trunkline.pools" -}}
{{- $pools := list -}}
{{- $defaults := .Values.poolDefaults -}}
{{- range .Values.pools -}}
{{- $pools = append $pools (mergeOverwrite (deepCopy $defaults) .) -}}
{{- end -}}
{{- $pools | toJson -}}
{{- end -}}

{{- define "trunkline.hasRegistry" -}}
{{- if or .Values.redis.enabled .Values.redis.external.url -}}yes{{- end -}}
{{- end -}}

{{/* What cannot work is refused here, where the schema cannot see it. */}}
{{- define "trunkline.check" -}}
{{- $values := .Values -}}
{{- $names := dict -}}
{{- range (include "trunkline.pools" . | fromJsonArray) -}}
{{- if hasKey $names .name -}}
{{- fail (printf "pools: two of them have the name %q" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- if and (eq .kind "DaemonSet") (not $values.endpointSlices.enabled) (not (include "trunkline.hasRegistry" $)) -}}
{{- fail (printf "pool %q is a DaemonSet, whose agents routers find through Redis or EndpointSlices: set redis.enabled, redis.external.url or endpointSlices.enabled" .name) -}}
{{- end -}}
{{- if .disk -}}
{{- if not .disk.size -}}
{{- fail (printf "pool %q: disk needs a size, such as 4GiB" .name) -}}
{{- end -}}
{{- if and (not .disk.storageClass) (not .disk.hostPath) (not .disk.volume) -}}
{{- fail (printf "pool %q: disk needs a volume: storageClass, hostPath, or volume" .name) -}}
{{- end -}}
{{- if and (eq .kind "DaemonSet") .disk.storageClass -}}
{{- fail (printf "pool %q: a DaemonSet has no claims of its own: give disk.hostPath in place of disk.storageClass" .name) -}}
{{- end -}}
{{- if not .hostMemory -}}
{{- fail (printf "pool %q: disk needs hostMemory: pages go to the disk through it" .name) -}}
{{- end -}}
{{- end -}}
{{- $memory := .resources.limits.memory | default "" -}}
{{- if $memory -}}
{{- $needed := include "trunkline.bytes" (list .kvMemory) | int64 -}}
{{- if or (gt (int .gpus) 0) (eq .engine "emulated") -}}{{- $needed = 0 -}}{{- end -}}
{{- if .hostMemory -}}{{- $needed = add $needed (include "trunkline.bytes" (list .hostMemory) | int64) -}}{{- end -}}
{{- if gt $needed (include "trunkline.bytes" (list $memory) | int64) -}}
{{- fail (printf "pool %q: its tiers take %d bytes of memory, and resources.limits.memory is %s" .name $needed $memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.router.replicas) 1) (not (include "trunkline.hasRegistry" .)) -}}
{{- fail (printf "router.replicas is %d: several routers need Redis: set redis.enabled or redis.external.url, or replicas to 1" (int .Values.router.replicas)) -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (not (include "trunkline.hasRegistry" .)) -}}
{{- fail "router.autoscaling: several routers need Redis: set redis.enabled or redis.external.url" -}}
{{- end -}}
{{- if and .Values.redis.enabled .Values.redis.external.url -}}
{{- fail "redis.enabled and redis.external.url exclude each other" -}}
{{- end -}}
{{- if and .Values.redis.external.url (not .Values.redis.external.existingSecret) -}}
{{- fail "redis.external.url needs redis.external.existingSecret, the Secret of its password" -}}
{{- end -}}
{{- if contains "@" .Values.redis.external.url -}}
{{- fail "redis.external.url holds a user or a password: put the password into redis.external.existingSecret" -}}
{{- end -}}
{{- end -}}

{{/* (list "512MiB") or (list "3Gi") -> bytes */}}
{{- define "trunkline.bytes" -}}
{{- $text := index . 0 | toString | trimSuffix "B" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text | trim -}}
{{- $factor := 1 -}}
{{- if $unit -}}{{- $factor = get $units $unit -}}{{- end -}}
{{- mulf $number $factor | int64 -}}
{{- end -}}

{{/* Flags and variables by which a process finds Redis. */}}
{{- define "trunkline.registryArgs" -}}
{{- if .Values.redis.enabled -}}
- --registry=redis://{{ include "trunkline.name" . }}-redis:6379/0
{{- else if .Values.redis.external.url -}}
- --registry={{ .Values.redis.external.url }}{{ if .Values.redis.external.caSecret }}?ssl_ca_certs=/etc/trunkline/redis-ca/{{ .Values.redis.external.caKey }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "trunkline.registrySecret" -}}
{{- .Values.redis.external.existingSecret | default (printf "%s-redis" (include "trunkline.name" .)) -}}
{{- end -}}

{{- define "trunkline.clusterSecret" -}}
{{- .Values.clusterSecret.existingSecret | default (printf "%s-cluster" (include "trunkline.name" .)) -}}
{{- end -}}

{{- define "trunkline.secretEnv" -}}
- name: TRUNKLINE_CLUSTER_SECRET
  valueFrom: {secretKeyRef: {name: {{ include "trunkline.clusterSecret" . }}, key: {{ .Values.clusterSecret.key }}}}
{{- if include "trunkline.hasRegistry" . }}
- name: TRUNKLINE_REGISTRY_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "trunkline.registrySecret" . }}, key: {{ if .Values.redis.enabled }}password{{ else }}{{ .Values.redis.external.key }}{{ end }}}}
{{- with .Values.redis.external.sentinelKey }}
- name: TRUNKLINE_SENTINEL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "trunkline.registrySecret" $ }}, key: {{ . }}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "trunkline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "trunkline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
