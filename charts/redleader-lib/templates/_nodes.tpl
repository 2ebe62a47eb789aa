{{/* The nodes: the chart's own, or those that are given. */}}

{{- define "redleader.ownNodes" -}}
{{- if kindIs "invalid" .Values.nodes.enabled -}}
{{- if not .Values.redis.addresses }}true{{ end -}}
{{- else if .Values.nodes.enabled -}}
true
{{- end -}}
{{- end -}}

{{/* The URLs, joined by commas. Own nodes have a Service each, whose address outlives a pod: no stale name costs a vote. */}}
{{- define "redleader.urls" -}}
{{- $urls := list -}}
{{- if include "redleader.ownNodes" . -}}
{{- $name := include "redleader.fullname" . -}}
{{- range until (int .Values.nodes.count) }}{{ $urls = append $urls (printf "redis://%s-node-%d:6379" $name .) }}{{ end -}}
{{- else -}}
{{- $scheme := ternary "rediss" "redis" .Values.redis.tls.enabled -}}
{{- range .Values.redis.addresses }}{{ $urls = append $urls (ternary . (printf "%s://%s" $scheme .) (contains "://" .)) }}{{ end -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{/* The list as it is compared: host:port/db, sorted. */}}
{{- define "redleader.list" -}}
{{- $names := list -}}
{{- range splitList "," (include "redleader.urls" .) -}}
{{- $rest := regexReplaceAll "^[a-z]+://([^@/]*@)?" (lower .) "" -}}
{{- $name := regexReplaceAll "[/?].*$" $rest "" -}}
{{- if not (regexMatch ":[0-9]+$" $name) }}{{ $name = printf "%s:6379" $name }}{{ end -}}
{{- $db := regexFind "/[0-9]+" $rest | default "/0" -}}
{{- $names = append $names (printf "%s%s" $name $db) -}}
{{- end -}}
{{- join "," (sortAlpha $names) -}}
{{- end -}}

{{- define "redleader.passwordSecret" -}}
{{- if include "redleader.ownNodes" . -}}
{{- .Values.nodes.existingSecret | default (printf "%s-nodes" (include "redleader.fullname" .)) -}}
{{- else -}}
{{- .Values.redis.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* What has the private authority and the client's certificate. */}}
{{- define "redleader.tlsSecret" -}}
{{- if .Values.redis.tls.enabled }}{{ .Values.redis.tls.existingSecret }}{{ end -}}
{{- end -}}

{{- define "redleader.passwordKey" -}}
{{- ternary "password" .Values.redis.existingSecretKey (ne (include "redleader.ownNodes" .) "") -}}
{{- end -}}

{{/*
How an election knows its nodes: for every container and hook that speaks to them. Each takes the mounts and volumes
below with it.
*/}}
{{- define "redleader.nodesEnv" -}}
- name: REDLEADER_LOCK
  value: {{ include "redleader.lock" . | quote }}
- name: REDLEADER_REDIS
  value: {{ include "redleader.urls" . | quote }}
{{- with .Values.redis.username }}
- name: REDLEADER_REDIS_USERNAME
  value: {{ . | quote }}
{{- end }}
{{- if include "redleader.passwordSecret" . }}
- name: REDLEADER_REDIS_PASSWORD_FILE
  value: /run/redleader/redis/{{ include "redleader.passwordKey" . }}
{{- end }}
{{- if include "redleader.tlsSecret" . }}
- name: REDLEADER_REDIS_CA_FILE
  value: /run/redleader/tls/ca.crt
{{- if .Values.redis.tls.clientCertificate }}
- name: REDLEADER_REDIS_CERT_FILE
  value: /run/redleader/tls/tls.crt
- name: REDLEADER_REDIS_KEY_FILE
  value: /run/redleader/tls/tls.key
{{- end }}
{{- end }}
- name: REDLEADER_TTL
  value: {{ .Values.ttl | quote }}
- name: REDLEADER_CLOCK_MARGIN
  value: {{ .Values.clockMargin | quote }}
{{- range $variable, $value := dict "NODE_TIMEOUT" .Values.nodeTimeout "QUARANTINE" .Values.quarantine "CONNECT_TIMEOUT" .Values.connectTimeout }}
{{- if $value }}
- name: REDLEADER_{{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "redleader.nodesMounts" -}}
{{- if include "redleader.passwordSecret" . }}
- {name: redleader-redis, mountPath: /run/redleader/redis, readOnly: true}
{{- end }}
{{- if include "redleader.tlsSecret" . }}
- {name: redleader-tls, mountPath: /run/redleader/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "redleader.nodesVolumes" -}}
{{- if include "redleader.passwordSecret" . }}
- name: redleader-redis
  secret:
    secretName: {{ include "redleader.passwordSecret" . | quote }}
    items: [{key: {{ include "redleader.passwordKey" . | quote }}, path: {{ include "redleader.passwordKey" . | quote }}}]
    defaultMode: 0444
{{- end }}
{{- if include "redleader.tlsSecret" . }}
- name: redleader-tls
  secret: {secretName: {{ include "redleader.tlsSecret" . | quote }}, defaultMode: 0444}
{{- end }}
{{- end -}}
