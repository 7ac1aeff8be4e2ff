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

{{- /* The default is the driver's image, which contains the controller. */ -}}
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

{{- define "neuron-dra.watcherLabels" -}}
app: neuron-dra-limits-watcher
app.kubernetes.io/name: neuron-dra-limits-watcher
app.kubernetes.io/component: limits-watcher
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- /* The labels of an object of monitoring: `own` names those of the chart, and `labels` of a value replace them. */ -}}
{{- define "neuron-dra.monitoringLabels" -}}
{{- toYaml (merge (deepCopy (.labels | default dict)) (fromYaml (include .own .root))) -}}
{{- end -}}

{{- /* With the label that a template library asks for, if there is one. */ -}}
{{- define "neuron-dra.testLabels" -}}
app.kubernetes.io/name: neuron-dra-test
{{- with .Values.templateLibrary }}
{{- if .required }}
{{ first (splitList "=" .label) }}: {{ last (splitList "=" .label) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "neuron-dra.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
argocd.argoproj.io/hook: Skip
{{- end -}}

{{- /* A constant of the kubelet, independent of --root-dir. */ -}}
{{- define "neuron-dra.devicePlugins" -}}/var/lib/kubelet/device-plugins{{- end -}}

{{- /* The environment variables that the chart sets; extraEnv adds others. */ -}}
{{- define "neuron-dra.env" -}}
{{- with .Values.draDriver -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: CDI_ROOT
  value: {{ .cdiRoot | quote }}
- name: KUBELET_REGISTRAR_DIRECTORY_PATH
  value: {{ printf "%s/plugins_registry" .kubeletRootDir | quote }}
- name: KUBELET_PLUGINS_DIRECTORY_PATH
  value: {{ printf "%s/plugins" .kubeletRootDir | quote }}
- name: KUBELET_DEVICE_PLUGINS_DIRECTORY_PATH
  value: {{ include "neuron-dra.devicePlugins" $ | quote }}
{{- if .podResources }}
- name: KUBELET_POD_RESOURCES_SOCKET
  value: {{ printf "%s/pod-resources/kubelet.sock" .kubeletRootDir | quote }}
{{- end }}
- name: HOST_DEV
  value: /host/dev
- name: BOOT_ID_FILE
  value: /host/boot_id
- name: HEALTHCHECK_PORT
  value: {{ .healthcheckPort | quote }}
- name: METRICS_BIND_ADDRESS
  value: {{ printf "0.0.0.0:%d" (int .metricsPort) | quote }}
{{- with .deviceCounters }}
- name: DEVICE_COUNTERS
  value: {{ . | quote }}
{{- end }}
- name: ULTRASERVER_DEVICES
  value: {{ .ultraserverDevices | quote }}
- name: DEVICE_PLUGIN_COEXISTENCE
  value: {{ .devicePluginCoexistence | quote }}
- name: UNHEALTHY_DEVICE_EFFECT
  value: {{ .unhealthyDevices.effect | quote }}
- name: UNHEALTHY_DEVICE_HOLD_SECONDS
  value: {{ .unhealthyDevices.holdSeconds | quote }}
- name: DEVICE_WAIT_SECONDS
  value: {{ .deviceWaitSeconds | quote }}
{{- if $.Values.efa.enabled }}
- name: EFA_INTERFACES
  value: "true"
{{- end }}
{{- if .deviceMetadata }}
- name: DEVICE_METADATA
  value: "true"
{{- end }}
- name: LOG_FORMAT
  value: {{ .logFormat | quote }}
- name: VERBOSITY
  value: {{ .verbosity | quote }}
{{- if $.Values.ultraserverOperator.enabled }}
- name: ENABLE_ULTRASERVER_OPERATOR
  value: "true"
{{- end }}
{{- if .presentLabel }}
- name: PRESENT_LABEL
  value: "true"
{{- end }}
{{- if $.Values.scheduler.enabled }}
- name: CONNECTED_SETS
  value: "true"
{{- with $.Values.scheduler.sizes }}
- name: CONNECTED_SIZES
  value: {{ join "," . | quote }}
{{- end }}
- name: ULTRASERVER_PARTS
  value: {{ $.Values.scheduler.ultraserverParts | default "auto" | quote }}
{{- with $.Values.scheduler.oldestRelease }}
- name: CONNECTED_SETS_OLDEST_RELEASE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .emulationMode }}
- name: NEURON_DRA_DRIVER_EMULATION_MODE
  value: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* The head of a ValidatingAdmissionPolicy, of the controller unless `labels` is set, and the binding that enables it. */ -}}
{{- define "neuron-dra.policy" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels:
    {{- include (.labels | default "neuron-dra.controllerLabels") .root | nindent 4 }}
{{- end -}}

{{- define "neuron-dra.policyBinding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include (.labels | default "neuron-dra.controllerLabels") .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end -}}

{{- /* Whether the ResourceClaimSpec at this path requests reserved devices, other than with adminAccess. */ -}}
{{- define "neuron-dra.asksForReserved" -}}
{{ . }}.?devices.?requests.orValue([]).exists(r,
(has(r.exactly) && r.exactly.deviceClassName == 'workload.neuron.aws.com' && !r.exactly.?adminAccess.orValue(false)) ||
r.?firstAvailable.orValue([]).exists(s, s.deviceClassName == 'workload.neuron.aws.com'))
{{- end -}}

{{- /* The seconds of a duration such as 1m30s. */}}
{{- define "neuron-dra.seconds" -}}
{{- $factors := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-z]+" . -1 -}}
{{- $number := regexFind "[0-9.]+" . | float64 -}}
{{- $seconds = addf $seconds (mulf $number (get $factors (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
