{{- /* An image: (list $ .Values.koordlet.image). */ -}}
{{- define "koordlet.image" -}}
{{- $image := index . 1 -}}
{{- with (index . 0).Values.imageRepositoryHost }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- with $image.tag }}:{{ . }}{{ end -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The flag of the agents' gates, which are not those of measuring only. */ -}}
{{- define "koordlet.features" -}}
{{- if .components.measureOnly -}}
{{- fail "koordlet.features: wanted none with koordlet.components.measureOnly, found some" -}}
{{- end -}}
{{- printf "--feature-gates=%s" .features -}}
{{- end -}}
