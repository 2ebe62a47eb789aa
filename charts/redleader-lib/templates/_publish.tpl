{{/* What is published through the API server. A mode that works by it turns it on. */}}

{{- define "redleader.publishesLabel" -}}{{- if or .Values.publish.label (eq .Values.mode "label") }}true{{ end -}}{{- end -}}
{{- define "redleader.publishesCondition" -}}{{- if or .Values.publish.condition (eq .Values.mode "gate") }}true{{ end -}}{{- end -}}

{{- define "redleader.publishes" -}}
{{- if or (include "redleader.publishesLabel" .) (include "redleader.publishesCondition" .) .Values.publish.lease .Values.publish.events .Values.publish.deletionCost }}true{{ end -}}
{{- end -}}

{{- define "redleader.publishEnv" -}}
{{- if include "redleader.publishesLabel" . }}
- {name: REDLEADER_KUBE_LABEL, value: "on"}
{{- end }}
{{- if include "redleader.publishesCondition" . }}
- {name: REDLEADER_KUBE_CONDITION, value: "on"}
{{- end }}
{{- with .Values.publish.lease }}
- {name: REDLEADER_KUBE_LEASE, value: {{ . | quote }}}
{{- end }}
{{- if .Values.publish.events }}
- {name: REDLEADER_KUBE_EVENTS, value: "on"}
{{- end }}
{{- if .Values.publish.deletionCost }}
- {name: REDLEADER_KUBE_DELETION_COST, value: "on"}
{{- end }}
{{- end -}}

{{/* Exactly the rights that the publishers above use. */}}
{{- define "redleader.rules" -}}
{{- $label := include "redleader.publishesLabel" . -}}
{{- $condition := include "redleader.publishesCondition" . -}}
{{- $verbs := list -}}
{{- if or $label $condition .Values.publish.lease }}{{ $verbs = append $verbs "get" }}{{ end -}}
{{- if or $label $condition .Values.publish.deletionCost }}{{ $verbs = append $verbs "watch" }}{{ end -}}
{{- if or $label .Values.publish.deletionCost }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- if $verbs }}
- apiGroups: [""]
  resources: [pods]
  verbs: {{ toJson $verbs }}
{{- end }}
{{- if $condition }}
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
{{- with .Values.publish.lease }}
# Before it is there, an object has no name that a right could be limited to.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ . | quote }}]
  verbs: [get, patch]
# From pod to ReplicaSet to Deployment: the Lease belongs to the workload, and goes away with it.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get]
{{- end }}
{{- if .Values.publish.events }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
{{- end -}}

{{/* ServiceAccount, Role and RoleBinding. Nothing is bound where nothing is published. */}}
{{- define "redleader.access" -}}
{{- if .Values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "redleader.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels: {{- include "redleader.labels" . | nindent 4 }}
  {{- with .Values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
# The one container that speaks to the API mounts a token of its own.
automountServiceAccountToken: false
---
{{- end }}
{{- if and .Values.rbac.create (include "redleader.publishes" .) }}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "redleader.fullname" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels: {{- include "redleader.labels" . | nindent 4 }}
rules: {{- include "redleader.rules" . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "redleader.fullname" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels: {{- include "redleader.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ include "redleader.fullname" . | quote }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "redleader.serviceAccountName" . | quote }}, namespace: {{ .Release.Namespace | quote }}}
{{- end }}
{{- end -}}
