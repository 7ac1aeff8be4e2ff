{{- define "neuron-dra.name" -}}neuron-dra-driver-kubelet-plugin{{- end -}}

{{- define "neuron-dra.image" -}}
{{- $hint := "set draDriver.image.repository to where you pushed the image, for example --set draDriver.image.repository=REGISTRY/neuron-dra-driver" -}}
{{- with .Values.draDriver.image -}}
{{- required $hint .repository -}}
{{- if .digest -}}@{{- .digest -}}{{- else -}}:{{- .tag | default $.Chart.AppVersion -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "neuron-dra.labels" -}}
app: {{ include "neuron-dra.name" . }}
app.kubernetes.io/name: neuron-dra-driver
app.kubernetes.io/component: kubelet-plugin
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "neuron-dra.selectorLabels" -}}
app: {{ include "neuron-dra.name" . }}
app.kubernetes.io/name: neuron-dra-driver
{{- end -}}
