{{/*
What things are called. Every template of this library takes the context of a chart whose values are redleader's:
`.` in charts/redleader, and in another chart
  (dict "Values" .Values.redleader "Release" .Release "Chart" .Chart "Capabilities" .Capabilities)
*/}}

{{/* The name of all objects. 46 characters leave room for the endings, and a hash keeps what is cut apart. */}}
{{- define "redleader.fullname" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name)) -}}
{{- if gt (len $name) 46 -}}
{{- printf "%s-%s" (trunc 37 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a Deployment and its Services select by. */}}
{{- define "redleader.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: replica
{{- end -}}

{{- define "redleader.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Chart.AppVersion }}
app.kubernetes.io/version: {{ . | quote }}
{{- end }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "redleader.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "redleader.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Namespace and name are in it, so that two applications never share a lock by default. */}}
{{- define "redleader.lock" -}}
{{- .Values.lock | default (printf "redleader:%s/%s" .Release.Namespace (include "redleader.fullname" .)) -}}
{{- end -}}

{{/* The version that these templates belong to: in a chart of your own, its appVersion is not ours. */}}
{{- define "redleader.version" -}}0.2.0{{- end -}}

{{/* Tags may be numbers: of 20161216, YAML makes a float, and a template "2.0161216e+07". */}}
{{- define "redleader.image" -}}
{{- $image := .Values.image -}}
{{- $tag := $image.tag | default (include "redleader.version" .) -}}
{{- if kindIs "float64" $tag }}{{ $tag = int64 $tag }}{{ end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}
