{{/* The name of both webhook configurations. */}}
{{- define "holdfast.configuration" -}}
{{ .Values.callLast | ternary "zz-holdfast" "holdfast" }}
{{- end }}

{{/* A released chart knows its image's digest, which applies unless another image is chosen. */}}
{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{- $released := index $.Chart.Annotations "holdfast.dev/image-digest" }}
{{- $digest := .digest | default (empty .tag | ternary $released "") }}
{{- if $digest }}{{ .repository }}@{{ $digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The number of admission servers. */}}
{{- define "holdfast.replicas" -}}
{{ .Values.replicas.webhook | default (.Values.highAvailability | ternary 3 2) }}
{{- end }}

{{/* The rest of a probe of the webhook. */}}
{{- define "holdfast.probe" -}}
{{ .Values.clientCA.enabled | ternary "port: health, scheme: HTTP" "port: https, scheme: HTTPS" }}
{{- end }}

{{/* Where pods run. */}}
{{- define "holdfast.scheduling" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName | default (.Values.highAvailability | ternary "system-cluster-critical" "") }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The configuration file. */}}
{{- define "holdfast.config" -}}
{{ toYaml (merge (dict "apiVersion" "holdfast.dev/v1beta1" "kind" "HoldfastConfiguration") .Values.config) }}
{{- end }}

{{/* Its ConfigMap: pods that are not replaced keep the file that they were started with. */}}
{{- define "holdfast.configMap" -}}
holdfast-config-{{ include "holdfast.config" . | sha256sum | trunc 10 }}
{{- end }}

{{/* An argument of a plugin in each profile, as JSON; profiles without it have the default. */}}
{{- define "holdfast.arguments" -}}
{{- $found := list }}
{{- range .profiles | default (list dict) }}
  {{- $value := $.default }}
  {{- range .pluginConfig }}
    {{- if eq .name $.plugin }}
      {{- $value = get (.args | default dict) $.argument | default $.default }}
    {{- end }}
  {{- end }}
  {{- $found = append $found $value }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* The annotations that decide about a held pod, as a list in CEL: see webhook/policies/pods.py. */}}
{{- define "holdfast.decidingKeys" -}}
{{- $default := list "holdfast.dev/delay" "delay" }}
{{- $own := list "holdfast.dev/not-before" "holdfast.dev/jitter" "holdfast.dev/delay-from" "holdfast.dev/window" "holdfast.dev/after" "holdfast.dev/pace" "holdfast.dev/approval" }}
{{- $keys := list }}
{{- range include "holdfast.arguments" (dict "profiles" .Values.config.profiles "plugin" "delay" "argument" "annotations" "default" $default) | fromJsonArray }}
  {{- $keys = concat $keys . $own }}
{{- end }}
{{- $keys = concat $keys .Values.guard.extraKeys $default (list "holdfast.dev/held" "holdfast.dev/profile" "holdfast.dev/allowed") }}
{{- join ", " (include "holdfast.quoted" $keys | fromJsonArray) }}
{{- end }}

{{/* The annotations in which the controller records a VM's node. */}}
{{- define "holdfast.recordingKeys" -}}
{{- $found := include "holdfast.arguments" (dict "profiles" .Values.config.profiles "plugin" "sticky" "argument" "nodeAnnotation" "default" "holdfast.dev/sticky-node") | fromJsonArray }}
{{- join ", " (include "holdfast.quoted" (append $found "holdfast.dev/sticky-node-uid") | fromJsonArray) }}
{{- end }}

{{- define "holdfast.quoted" -}}
{{- $quoted := list }}
{{- range uniq . }}{{ $quoted = append $quoted (squote .) }}{{ end }}
{{- toJson $quoted }}
{{- end }}

{{/*
Annotations of an account or permission of the Job that frees pods. helm deletes objects with
hook-succeeded even if the Job fails later or takes too long; it would run on without permissions.
So they stay after pre-delete, and are created again after everything else has been deleted, which
deletes them.
*/}}
{{- define "holdfast.hook" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation{{ if eq . "post-delete" }},hook-succeeded{{ end }}
{{- end }}
