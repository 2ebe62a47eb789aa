{{/* What cannot work is refused here, with what to do. A chart of your own includes it once. */}}
{{- define "redleader.checks" -}}
{{- $mode := .Values.mode -}}
{{- $traffic := include "redleader.hasTraffic" . -}}
{{- if and .Values.redis.addresses .Values.nodes.enabled -}}
{{- fail "redis.addresses and nodes.enabled are both given: leave out the addresses to use the chart's own nodes, or set nodes.enabled to false to use yours" -}}
{{- end -}}
{{- if and (not .Values.redis.addresses) (not (include "redleader.ownNodes" .)) -}}
{{- fail "there are no nodes: list them in redis.addresses, or leave nodes.enabled unset for three of the chart's own" -}}
{{- end -}}
{{- range .Values.redis.addresses -}}
{{- if regexMatch "^[a-z]+://[^/]*:[^/]*@" . -}}
{{- fail "an entry of redis.addresses has a password in it, and every reader of the release would see it: put it in a Secret, name that in redis.existingSecret, and leave it out of the address" -}}
{{- end -}}
{{- end -}}
{{- $names := splitList "," (include "redleader.list" .) -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- fail (printf "redis.addresses names a node twice (%s): a server has one vote" (join ", " $names)) -}}
{{- end -}}
{{- if and .Values.wrap.enabled (not .Values.app.command) -}}
{{- fail "wrap.enabled runs the app under redleader and needs app.command: the command of the image, which a chart cannot know" -}}
{{- end -}}
{{- if and (or .Values.app.port .Values.app.command .Values.wrap.enabled) (not .Values.app.image) -}}
{{- fail "app.image is missing: app.port, app.command and wrap.enabled say something of a container that is not there" -}}
{{- end -}}
{{- if and $traffic (ne $mode "label") -}}
{{- if .Values.pdb.enabled -}}
{{- fail (printf "pdb.enabled blocks every drain for ever in mode %s, where one pod is Ready and it is the one to be drained: leave it out, or use mode label" $mode) -}}
{{- end -}}
{{- include "redleader.checkStrategy" . -}}
{{- end -}}
{{- $_ := include "redleader.grace" . -}}
{{- $_ := include "redleader.terminationGracePeriodSeconds" . -}}
{{- include "redleader.checkList" . -}}
{{- end -}}

{{/* Where only the leader is Ready, a new pod cannot be Ready before the old leader is gone. */}}
{{- define "redleader.checkStrategy" -}}
{{- with .Values.strategy -}}
{{- $unavailable := (.rollingUpdate | default dict).maxUnavailable | toString -}}
{{- if and (ne .type "Recreate") (ne $unavailable "100%") -}}
{{- fail (printf "strategy %s deadlocks in mode %s: a new pod is never Ready while the old one leads, so it is never taken away; use Recreate, or RollingUpdate with maxUnavailable 100%%, or mode label" (toJson .) $.Values.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Lists that differ by more than one node exclude nobody (docs/protocol.md, rule 23). */}}
{{- define "redleader.checkList" -}}
{{- if not .Values.allReplicasStopped -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "redleader.fullname" .) -}}
{{- $before := dig "metadata" "annotations" "redleader.dev/nodes" "" (default dict $running) -}}
{{- if $before -}}
{{- $old := splitList "," $before -}}
{{- $new := splitList "," (include "redleader.list" .) -}}
{{- $changes := list -}}
{{- range $old }}{{ if not (has . $new) }}{{ $changes = append $changes (printf "-%s" .) }}{{ end }}{{ end -}}
{{- range $new }}{{ if not (has . $old) }}{{ $changes = append $changes (printf "+%s" .) }}{{ end }}{{ end -}}
{{- if gt (len $changes) 1 -}}
{{- fail (printf "the list of nodes changes by %d (%s), and replicas with the old and the new list could both lead: add or remove one node at each upgrade, or scale to 0, wait for one quarantine, and upgrade with allReplicasStopped=true" (len $changes) (join " " $changes)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
