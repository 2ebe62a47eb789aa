{{/* What every pod of the release takes from the values. */}}
{{- define "redleader.podSettings" -}}
{{- with .Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Your container: beside the sidecar, or with redleader as its first process. */}}
{{- define "redleader.app" -}}
name: app
image: {{ .Values.app.image | quote }}
{{- with .Values.app.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- with .Values.app.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.app.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.app.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.wrap.enabled }}
command: [{{ include "redleader.binary" . }}, run, --]
args: {{- concat .Values.app.command (.Values.app.args | default list) | toYaml | nindent 2 }}
env:
  {{- include "redleader.env" . | nindent 2 }}
  {{- with .Values.wrap.onExit }}
  - {name: REDLEADER_ON_EXIT, value: {{ . | quote }}}
  {{- end }}
  {{- with .Values.app.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{ include "redleader.probes" . }}
{{- else }}
{{- with .Values.app.command }}
command: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.app.args }}
args: {{- toYaml . | nindent 2 }}
{{- end }}
env:
  # Whom to ask: /readyz, /leader and the token are there.
  - {name: REDLEADER_URL, value: "http://127.0.0.1:{{ include "redleader.port" . }}"}
  {{- with .Values.app.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.app.port }}
ports:
  - {name: app, containerPort: {{ int64 . }}, protocol: TCP}
{{- end }}
{{- with .Values.app.readinessProbe }}
readinessProbe: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.app.livenessProbe }}
livenessProbe: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.app.lifecycle }}
lifecycle: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $mounts := ternary (include "redleader.mounts" .) "" .Values.wrap.enabled -}}
{{- with printf "%s\n%s" $mounts (empty .Values.app.volumeMounts | ternary "" (toYaml .Values.app.volumeMounts)) | trim }}
volumeMounts: {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A pod that asks the nodes something and ends: the wait after an install, the test. */}}
{{- define "redleader.errand" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{ include "redleader.podSettings" .context }}
{{- /* What keeps replicas apart from each other would keep it from every host that has one. */}}
{{- with .context.Values.affinity.nodeAffinity }}
affinity:
  nodeAffinity: {{- toYaml . | nindent 4 }}
{{- end }}
containers:
  - name: redleader
    {{- include "redleader.imageLines" .context | nindent 4 }}
    args: {{- toJson .args | nindent 6 }}
    env: {{- include "redleader.nodesEnv" .context | nindent 6 }}
    {{- with include "redleader.nodesMounts" .context | trim }}
    volumeMounts: {{- . | nindent 6 }}
    {{- end }}
{{- with include "redleader.nodesVolumes" .context | trim }}
volumes: {{- . | nindent 2 }}
{{- end }}
{{- end -}}
