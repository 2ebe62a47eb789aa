{{/* Durations, as the program reads them: 500ms, 8s, 1m30s. */}}

{{- define "redleader.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $total = add $total (mul (trimSuffix $unit . | int64) (get $units $unit | int64)) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{/* All numbers in milliseconds, with the program's own defaults, as JSON. */}}
{{- define "redleader.timing" -}}
{{- $ttl := include "redleader.milliseconds" .Values.ttl | int64 -}}
{{- $margin := trimSuffix "%" .Values.clockMargin | float64 -}}
{{- $validity := mulf $ttl (subf 1.0 (divf $margin 100.0)) | int64 -}}
{{- $renew := div $ttl 4 -}}{{- with .Values.renewEvery }}{{ $renew = include "redleader.milliseconds" . | int64 }}{{ end -}}
{{- $node := div $ttl 20 -}}{{- with .Values.nodeTimeout }}{{ $node = include "redleader.milliseconds" . | int64 }}{{ end -}}
{{- $quarantine := mulf $ttl (addf 1.0 (divf $margin 100.0)) | int64 -}}{{- with .Values.quarantine }}{{ $quarantine = include "redleader.milliseconds" . | int64 }}{{ end -}}
{{- $stop := include "redleader.milliseconds" .Values.stopTimeout | int64 -}}
{{- dict "ttl" $ttl "validity" $validity "renew" $renew "node" $node "quarantine" $quarantine "stop" $stop | toJson -}}
{{- end -}}

{{/* Whether requests are kept from standbys: a worker under the wrapper that takes none has no use for it. */}}
{{- define "redleader.hasTraffic" -}}
{{- if or (not .Values.wrap.enabled) .Values.app.port }}true{{ end -}}
{{- end -}}

{{/* Whether standbys are not Ready, so that one pod is. */}}
{{- define "redleader.onlyLeaderReady" -}}
{{- if and (include "redleader.hasTraffic" .) (ne .Values.mode "label") }}true{{ end -}}
{{- end -}}

{{/*
The grace that is given, or 3 s: the kubelet asks once a second, and what it has seen has to reach every node of the
cluster before the deadline. Empty where the program's own default is to be used.
*/}}
{{- define "redleader.grace" -}}
{{- $timing := include "redleader.timing" . | fromJson -}}
{{- $room := sub (int64 $timing.validity) (add (int64 $timing.renew) (mul 2 (int64 $timing.node))) -}}
{{- if .Values.grace -}}
{{- .Values.grace -}}
{{- else if not (include "redleader.hasTraffic" .) -}}
{{- else if gt $room (int64 3000) -}}
3s
{{- else if ne .Values.mode "label" -}}
{{- fail (printf "mode %s keeps a grace of 3s, so that no two pods are Ready together, and ttl %s leaves no room for it: raise ttl above 5.5s (renewEvery and nodeTimeout follow it), use mode label, or set grace yourself and accept a moment with two Ready pods when a leader is cut off" .Values.mode .Values.ttl) -}}
{{- end -}}
{{- end -}}

{{/* On resign, how long a leader is kept that has told that it ends. */}}
{{- define "redleader.handoverDelay" -}}
{{- .Values.handoverDelay | default (ternary "2s" "0s" (ne (include "redleader.hasTraffic" .) "")) -}}
{{- end -}}

{{/*
The longest that a pod may take to end, in whole seconds: the limit of `redleader drain` (5 s), then the app, the wrapped
command or a hand-over that has begun, then what the election itself is given (its own bound: ttl, two node timeouts, two
seconds).
*/}}
{{- define "redleader.terminationNeeded" -}}
{{- $timing := include "redleader.timing" . | fromJson -}}
{{- $handover := include "redleader.handoverDelay" . | include "redleader.milliseconds" | int64 -}}
{{- $sum := add 5000 (max (int64 $timing.stop) $handover) (int64 $timing.ttl) (mul 2 (int64 $timing.node)) 2000 -}}
{{- div (add $sum 999) 1000 -}}
{{- end -}}

{{/*
How long a restarted node is left alone before the next is restarted (docs/protocol.md, rule 24): less, and two nodes
can be without a voice together.
*/}}
{{- define "redleader.minReadySeconds" -}}
{{- $timing := include "redleader.timing" . | fromJson -}}
{{- $sum := sub (add (int64 $timing.quarantine) (mul 3 (int64 $timing.renew))) (int64 $timing.validity) -}}
{{- max 1 (div (add $sum 999) 1000) -}}
{{- end -}}
