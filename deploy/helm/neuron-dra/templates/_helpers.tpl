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


{{- define "neuron-dra.controllerName" -}}neuron-ultraserver-controller{{- end -}}

{{- /* The driver's image has the controller in it: it is used where no other is named. */ -}}
{{- define "neuron-dra.controllerImage" -}}
{{- with .Values.ultraserverOperator.image -}}
{{- if .repository -}}
{{- .repository -}}{{- if .digest -}}@{{- .digest -}}{{- else -}}:{{- .tag | default $.Chart.AppVersion -}}{{- end -}}
{{- else -}}
{{- include "neuron-dra.image" $ -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "neuron-dra.controllerLabels" -}}
{{ include "neuron-dra.controllerSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "neuron-dra.controllerSelectorLabels" -}}
app: {{ include "neuron-dra.controllerName" . }}
app.kubernetes.io/name: neuron-ultraserver-controller
app.kubernetes.io/component: controller
{{- end -}}
