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
{{- if hasKey .Values.poolDefaults "name" -}}
{{- fail "poolDefaults.name: each of the pools has a name of its own" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs is empty: an HTTPRoute belongs to a Gateway" -}}
{{- end -}}
{{- if eq (int .Values.admin.port) 8000 -}}
{{- fail "admin.port is 8000, where clients are served" -}}
{{- end -}}
{{- range (include "trunkline.pools" . | fromJsonArray) -}}
{{- if hasKey $names .name -}}
{{- fail (printf "pools: two of them have the name %q" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- if and (eq .kind "DaemonSet") (not $values.endpointSlices.enabled) (not (include "trunkline.hasRegistry" $)) -}}
{{- fail (printf "pool %q is a DaemonSet, whose agents routers find through Redis or EndpointSlices: set redis.enabled, redis.external.url or endpointSlices.enabled" .name) -}}
{{- end -}}
{{- if and (eq .engine "builtin") (hasPrefix "/models/" .model) (not .modelVolume) (not .modelInit) -}}
{{- fail (printf "pool %q: nothing is mounted on /models, where its model %s would be: set modelVolume or modelInit" .name .model) -}}
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
{{- if .hugepages -}}
{{- if not .hostMemory -}}
{{- fail (printf "pool %q: hugepages are for the host tier, and it has no hostMemory" .name) -}}
{{- end -}}
{{- if le (include "trunkline.bytes" (list .hugepages) | int64) (include "trunkline.bytes" (list .hostMemory) | int64) -}}
{{- fail (printf "pool %q: hugepages of %s have no room for hostMemory %s and what describes its pages" .name .hugepages .hostMemory) -}}
{{- end -}}
{{- end -}}
{{- $memory := .resources.limits.memory | default "" -}}
{{- if $memory -}}
{{- $needed := 0 -}}
{{- $tiers := list -}}
{{- if eq .engine "builtin" -}}
{{- $needed = include "trunkline.bytes" (list .kvMemory) | int64 -}}
{{- $tiers = append $tiers (printf "kvMemory %s" .kvMemory) -}}
{{- end -}}
{{- if and .hostMemory (not .hugepages) -}}
{{- $needed = add $needed (include "trunkline.bytes" (list .hostMemory) | int64) -}}
{{- $tiers = append $tiers (printf "hostMemory %s" .hostMemory) -}}
{{- end -}}
{{- if gt $needed (include "trunkline.bytes" (list $memory) | int64) -}}
{{- fail (printf "pool %q: its tiers, %s, have no room in resources.limits.memory %s" .name (join " and " $tiers) $memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.router.replicas) 1) (not (include "trunkline.hasRegistry" .)) -}}
{{- fail (printf "router.replicas is %d: several routers need Redis: set redis.enabled or redis.external.url, or replicas to 1" (int .Values.router.replicas)) -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (not (include "trunkline.hasRegistry" .)) -}}
{{- fail "router.autoscaling: several routers need Redis: set redis.enabled or redis.external.url" -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (gt (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas)) -}}
{{- fail (printf "router.autoscaling: minReplicas %d is more than maxReplicas %d" (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and .Values.redis.enabled .Values.redis.external.url -}}
{{- fail "redis.enabled and redis.external.url exclude each other" -}}
{{- end -}}
{{- if and .Values.redis.external.url (not .Values.redis.external.existingSecret) -}}
{{- fail "redis.external.url needs redis.external.existingSecret, the Secret of its password" -}}
{{- end -}}
{{- if and .Values.redis.external.caSecret (not (hasPrefix "rediss" .Values.redis.external.url)) -}}
{{- fail (printf "redis.external.caSecret is for TLS, and redis.external.url begins with %q" (first (splitList ":" .Values.redis.external.url))) -}}
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
- --registry={{ .Values.redis.external.url }}{{ if .Values.redis.external.caSecret }}{{ contains "?" .Values.redis.external.url | ternary "&" "?" }}ssl_ca_certs=/etc/trunkline/redis-ca/{{ .Values.redis.external.caKey }}{{ end }}
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

{{/* Flags of the log and of traces, and the variables that OpenTelemetry reads itself. */}}
{{- define "trunkline.telemetryArgs" -}}
- --log-format={{ .Values.logs.format }}
{{- with .Values.traces.endpoint }}
- --otlp-endpoint={{ . }}
{{- end }}
{{- end -}}

{{- define "trunkline.telemetryEnv" -}}
{{- with .Values.traces -}}
{{- if .endpoint -}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .ratio | quote }}}
{{- if .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .headersSecret }}, key: {{ .headersKey }}}}
{{- end }}
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
