{{/* What cannot work is refused here, with what to do. A chart of your own includes it once. */}}
{{- define "redleader.checks" -}}
{{- if and .Values.redis.addresses .Values.nodes.enabled -}}
{{- fail "redis.addresses and nodes.enabled are both given: leave out the addresses to use the chart's own nodes, or set nodes.enabled to false to use yours" -}}
{{- end -}}
{{- if and (not .Values.redis.addresses) (not (include "redleader.ownNodes" .)) -}}
{{- fail "there are no nodes: list them in redis.addresses, or leave nodes.enabled unset for three of the chart's own" -}}
{{- end -}}
{{- range .Values.redis.addresses -}}
{{- if regexMatch "^([A-Za-z+]+://)?[^/]*:[^/]*@" . -}}
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
{{- if include "redleader.onlyLeaderReady" . -}}
{{- if .Values.pdb.enabled -}}
{{- fail (printf "pdb.enabled blocks every drain for ever in mode %s, where one pod is Ready and it is the one to be drained: leave it out, or use mode label" .Values.mode) -}}
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
{{- $running := include "redleader.running" . | fromJson -}}
{{- $list := include "redleader.list" . -}}
{{- $ending := 0 -}}
{{- if and $running.list (ne $running.list $list) -}}{{- $ending = include "redleader.ending" . | int64 -}}{{- end -}}
{{- range $before := ternary (list $running.list $running.before) (list $running.list) (or $running.rolls (gt $ending 0)) | compact -}}
{{- $old := splitList "," $before -}}
{{- $new := splitList "," $list -}}
{{- $changes := list -}}
{{- range $old }}{{ if not (has . $new) }}{{ $changes = append $changes (printf "-%s" .) }}{{ end }}{{ end -}}
{{- range $new }}{{ if not (has . $old) }}{{ $changes = append $changes (printf "+%s" .) }}{{ end }}{{ end -}}
{{- $what := printf "the list of nodes changes by %d (%s), and replicas with the old and the new list could both lead" (len $changes) (join " " $changes) -}}
{{- if le (len $changes) 1 -}}
{{- else if ne $before $running.list -}}
{{- fail (printf "%s: a rollout is not over, and some pods may have the list before it; wait until the last old pod is gone" $what) -}}
{{- else if not $.Values.allReplicasStopped -}}
{{- fail (printf "%s: add or remove one node at each upgrade, or scale to 0, wait until the pods are gone and for one quarantine more, and upgrade with allReplicasStopped=true" $what) -}}
{{- else if or $running.replicas $ending -}}
{{- fail (printf "%s: allReplicasStopped is set, but the Deployment has %d, and %d more that are ending; scale it to 0, wait until they are gone, and for one quarantine more" $what (int64 $running.replicas) $ending) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The Deployment as it runs, as JSON: its replicas, its list of nodes, the list before that, and whether some pods may still
have that one, since a rollout is not over.
*/}}
{{- define "redleader.running" -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "redleader.fullname" .) | default dict -}}
{{- $annotations := dig "metadata" "annotations" dict $running -}}
{{- $list := get $annotations "redleader.dev/nodes" -}}
{{- $before := get $annotations "redleader.dev/nodes-before" -}}
{{- $status := dig "status" dict $running -}}
{{- $replicas := dig "replicas" 0 $status | int64 -}}
{{- $unseen := lt (dig "observedGeneration" 0 $status | int64) (dig "metadata" "generation" 0 $running | int64) -}}
{{- $rolls := or $unseen (lt (dig "updatedReplicas" 0 $status | int64) $replicas) -}}
{{- dict "replicas" $replicas "list" $list "before" $before "rolls" $rolls | toJson -}}
{{- end -}}

{{/*
How many pods of the release are on their way out. A Deployment does not count them any more, and each of them may lead
until its app has ended.
*/}}
{{- define "redleader.ending" -}}
{{- $labels := include "redleader.selectorLabels" . | fromYaml -}}
{{- $count := 0 -}}
{{- range (lookup "v1" "Pod" .Release.Namespace "" | default dict).items -}}
{{- $of := .metadata.labels | default dict -}}
{{- $ours := not (empty .metadata.deletionTimestamp) -}}
{{- range $key, $value := $labels }}{{ if ne (get $of $key | toString) $value }}{{ $ours = false }}{{ end }}{{ end -}}
{{- if $ours }}{{ $count = add1 $count }}{{ end -}}
{{- end -}}
{{- $count -}}
{{- end -}}

{{/* What a Deployment is annotated with, so that the next upgrade can compare its list of nodes. */}}
{{- define "redleader.listAnnotations" -}}
{{- $list := include "redleader.list" . -}}
{{- $running := include "redleader.running" . | fromJson -}}
{{- $before := ternary $running.before $running.list (eq $running.list $list) -}}
redleader.dev/nodes: {{ $list | quote }}
{{- with $before }}
redleader.dev/nodes-before: {{ . | quote }}
{{- end }}
{{- end -}}
