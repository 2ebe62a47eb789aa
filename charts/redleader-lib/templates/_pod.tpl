{{/*
The parts of a pod. A chart of your own takes them so:
  spec:
    automountServiceAccountToken: false
    serviceAccountName: {{ include "redleader.serviceAccountName" $ctx }}
    terminationGracePeriodSeconds: {{ include "redleader.terminationGracePeriodSeconds" $ctx }}
    {{- include "redleader.readinessGates" $ctx | nindent 4 }}
    initContainers: {{- include "redleader.sidecar" $ctx | nindent 6 }}
    volumes: {{- include "redleader.volumes" $ctx | nindent 6 }}
*/}}

{{- define "redleader.terminationGracePeriodSeconds" -}}
{{- $needed := include "redleader.terminationNeeded" . | int64 -}}
{{- $given := .Values.terminationGracePeriodSeconds | int64 -}}
{{- if lt $given $needed -}}
{{- fail (printf "terminationGracePeriodSeconds %d is less than %d, which drain, stopTimeout %s (or handoverDelay %s) and the end of an election with ttl %s can take together: raise it to %d, or lower those" $given $needed .Values.stopTimeout (include "redleader.handoverDelay" .) .Values.ttl $needed) -}}
{{- end -}}
{{- $given -}}
{{- end -}}

{{- define "redleader.readinessGates" -}}
{{- if and (eq .Values.mode "gate") (include "redleader.onlyLeaderReady" .) }}
readinessGates:
  - conditionType: redleader.dev/leader
{{- end }}
{{- end -}}

{{/* The environment of `redleader run`. */}}
{{- define "redleader.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{ include "redleader.nodesEnv" . }}
{{- range $variable, $value := dict "RENEW_EVERY" .Values.renewEvery "GRACE" (include "redleader.grace" .) "HANDOVER_DELAY" (include "redleader.handoverDelay" .) "STOP_TIMEOUT" .Values.stopTimeout "LISTEN" .Values.listen "LOG_LEVEL" .Values.logLevel }}
{{- if $value }}
- name: REDLEADER_{{ $variable }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- with .Values.maxFailedExtends }}
- name: REDLEADER_MAX_FAILED_EXTENDS
  value: {{ int64 . | quote }}
{{- end }}
{{- include "redleader.publishEnv" . }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "redleader.port" -}}{{ regexFind "[0-9]+$" .Values.listen }}{{- end -}}

{{/* Probes, ports and the hook of whichever container runs `redleader run`. */}}
{{- define "redleader.probes" -}}
ports:
  - {name: redleader, containerPort: {{ include "redleader.port" . }}, protocol: TCP}
  {{- if and .Values.wrap.enabled .Values.app.port }}
  - {name: app, containerPort: {{ int64 .Values.app.port }}, protocol: TCP}
  {{- end }}
startupProbe:
  httpGet: {path: /livez, port: redleader}
  periodSeconds: 1
  timeoutSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: redleader}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 3
{{- if include "redleader.hasTraffic" . }}
# Once a second, and the first failure counts: a standby must not get requests for longer than that.
readinessProbe:
  httpGet: {path: {{ ternary "/routez" "/readyz" (eq .Values.mode "label") }}, port: redleader}
  periodSeconds: 1
  timeoutSeconds: 1
  failureThreshold: 1
{{- end }}
# A replica that is going wins nothing any more; it keeps what it holds until the app beside it is gone.
lifecycle:
  preStop:
    exec:
      command: [{{ include "redleader.binary" . }}, drain]
{{- end -}}

{{- define "redleader.binary" -}}{{ ternary "/run/redleader/bin/redleader" "/redleader" .Values.wrap.enabled }}{{- end -}}

{{- define "redleader.mounts" -}}
{{- include "redleader.nodesMounts" . }}
{{- if include "redleader.publishes" . }}
- {name: redleader-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- if .Values.wrap.enabled }}
- {name: redleader-bin, mountPath: /run/redleader/bin, readOnly: true}
{{- end }}
{{- end -}}

{{/*
The entry of initContainers: the sidecar, which starts before the app and ends after it, or under wrap.enabled the
container that puts the binary where the app's container finds it.
*/}}
{{- define "redleader.sidecar" -}}
{{- if .Values.wrap.enabled }}
- name: redleader-install
  {{- include "redleader.imageLines" . | nindent 2 }}
  args: [install, /run/redleader/bin]
  volumeMounts:
    - {name: redleader-bin, mountPath: /run/redleader/bin}
{{- else }}
- {{ include "redleader.container" . | nindent 2 | trim }}
  # Native: the app gets SIGTERM first, and leadership is extended until it is gone.
  restartPolicy: Always
{{- end }}
{{- end -}}

{{- define "redleader.imageLines" -}}
image: {{ include "redleader.image" . | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with .Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A container with redleader in it, for the sidecar, or for a pod that has nothing else. */}}
{{- define "redleader.container" -}}
name: redleader
{{ include "redleader.imageLines" . }}
args: [run]
env: {{- include "redleader.env" . | nindent 2 }}
{{ include "redleader.probes" . }}
{{- with include "redleader.mounts" . | trim }}
volumeMounts: {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "redleader.volumes" -}}
{{- include "redleader.nodesVolumes" . }}
{{- if .Values.wrap.enabled }}
- name: redleader-bin
  emptyDir: {sizeLimit: 32Mi}
{{- end }}
{{- if include "redleader.publishes" . }}
# What an automatic token is made of, for one container only.
- name: redleader-token
  projected:
    defaultMode: 0444
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}
{{- end -}}
